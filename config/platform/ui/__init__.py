"""Shared parts of the web pages. The pages of each app are in `<app>/pages`."""
