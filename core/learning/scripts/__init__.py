"""Bundles whose training a site's own script does; it answers with weights."""
