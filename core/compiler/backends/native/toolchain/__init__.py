"""The C compiler, its targets, the cache of objects, and tuning."""
