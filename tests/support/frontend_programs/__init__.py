"""Programs that tests of the front end compile, a file a topic."""
