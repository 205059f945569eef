"""What crosses a wire: the agent's frames and the shapes inside them."""
