"""The fleet's front door: a ``SandboxService`` that forwards each call to the right worker."""
