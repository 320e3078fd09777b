"""From a DataFrame to tensors and back: roles of columns, files, scaling, encoding, batches."""
