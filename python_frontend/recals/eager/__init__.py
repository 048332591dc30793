"""Eager modules: captured by dynamo as they are called, planned for what they are called with, and run in place."""
