"""The command `orchestra`: one file a group of commands."""
