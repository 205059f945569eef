"""The registry: environments, tools, prompts, agents and policies as YAML, read into domain values."""
