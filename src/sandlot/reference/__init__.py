"""The reference pages in docs/reference that are generated from the code: ``make docs`` writes them.

pages.py       which pages there are, and what generates each of them
markdown.py    headings, paragraphs, tables and links
docstrings.py  docstrings as Markdown, and the meaning of fields that they explain
cli_page.py    cli.md: the commands      errors_page.py  errors.md: the error tree
sdk_page.py    sdk.md: the public Python classes; classes.py, values.py and signatures.py write its parts
http_page.py   http.md: the routes, from the OpenAPI description; schemas.py writes its types
metrics_page.py  metrics.md: the metrics, from the table in ``domain.metrics``

The settings page and the OpenAPI file are written by ``config.settings_doc`` and ``api.openapi``. Nothing in
the program imports this package.
"""
