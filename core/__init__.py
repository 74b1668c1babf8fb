"""What all tiers share. A part imports only parts below it: docs/architecture.md."""
