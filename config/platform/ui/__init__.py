"""Pages that people look at in a browser: what those of all apps share. Each app has its own in `<app>/pages`."""
