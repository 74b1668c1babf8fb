"""Changes in place: arrays with versions, their views and aliases."""
