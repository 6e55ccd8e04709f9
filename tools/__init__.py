"""What makes parts of the product and is not installed with it."""
