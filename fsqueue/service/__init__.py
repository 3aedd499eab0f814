"""The gateway: the verbs of queues and groups over HTTP, for hosts that have not mounted the filesystem.

It stands on top of everything, and calls what users can call. Read `application` first: it puts the parts together.
`gate` decides who may, `verb_calls` lists what can be asked for, `client` asks. docs/serve.md is the users' page.
Starlette comes with the extra `serve`; the client needs the standard library alone.
"""
