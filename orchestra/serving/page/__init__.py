"""The page at `/`: one static file, which asks nothing but this gateway."""

from pathlib import Path

PAGE = Path(__file__).parent / "index.html"
HEADERS = {
    # Nothing from elsewhere is loaded, asked, framed or sent; the one script and style are in the file.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
