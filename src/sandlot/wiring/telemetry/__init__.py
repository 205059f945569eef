"""What a server tells others about itself, as its settings say."""
