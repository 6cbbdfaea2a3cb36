"""Pages of documents: upload, progress, and results."""
