"""The edge tier: its protocol and its daemon."""
