"""`holdfast chat`: a conversation in the terminal, in a session that lives as long as this process."""
