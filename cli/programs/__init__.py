"""Commands of programs and bundles: IR, C, artifacts, the cache, tuning, quantisation."""
