"""holdfast as the store of agent frameworks, one file for each. Imported only when used.

To add a framework: one file that implements its storage interface on `Bridge`, a test file, a page in
docs/how-to. Nothing else imports it.
"""
