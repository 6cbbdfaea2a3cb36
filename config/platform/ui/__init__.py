"""Shared parts of the web pages. Each app has its own pages in `<app>/pages`."""
