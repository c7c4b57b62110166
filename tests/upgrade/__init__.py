"""The folders of a release, and the present build over them."""
