"""`holdfast chat`: a conversation in the terminal. Its session ends with this process."""
