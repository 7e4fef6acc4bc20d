"""The build writes this module."""

version: str
torch_version: str
