"""The pages of documents: submitting them, watching them, and reading what became of them."""
