"""A run on several devices, which divide heads, hidden units and vocabulary, and batches."""
