"""Pages for a browser: templates, one style, charts. Begin with `rendering`; decision 48 says why it is done so."""
