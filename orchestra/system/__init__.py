"""The machine: processes, servers, the workspace, its environment."""
