"""The public models, how they are built, and how they are saved."""
