"""The folders that a release leaves behind, and the present build over them."""
