"""Functions with arguments, compiled and run as Python by the tests of the language."""
