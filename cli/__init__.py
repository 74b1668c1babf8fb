"""The `delian` command: groups of commands by folder, and what all of them share."""
