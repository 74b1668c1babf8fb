"""From a bundle to an artifact, a stand-alone command, or plain C."""
