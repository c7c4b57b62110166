"""Keyed state on its way between runners, numbers of workers and versions. Imports no runner."""
