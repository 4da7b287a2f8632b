"""A figure of matplotlib that notebooks show."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A figure that is not one of pyplot's, which would keep it, and show it twice.

    Without pyplot, a notebook has not been told how to show a figure: it asks the figure itself.
    """

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()
