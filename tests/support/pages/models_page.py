"""The table of ONNX's operators in docs/models.md."""

from __future__ import annotations

START = "<!-- Operators of ONNX: python tests/house/generated.py -->\n"
END = "\n\n<!-- End of the operators -->"


def onnx_operators() -> str:
    """A line a domain and first letter: names of operators, with what must be known of them."""
    from delian.core.learning.interchange.onnx.operator_rows import Row
    from delian.core.learning.interchange.onnx.rows import DOMAINS, REASONS
    from delian.core.learning.interchange.onnx.rows.control_rows import CONTROLS

    lines = [START.rstrip(), "", "| domain | operators |", "|---|---|"]
    for domain, rows in DOMAINS.items():
        names = []
        for name, row in rows.items():
            newest = row if isinstance(row, Row) else row[-1]
            known = ", ".join(str(k) for k in newest.known)
            names.append(f"{name} ({known})" if known else name)
        names += [] if domain else list(CONTROLS)
        lines.append(f"| `{domain or 'ai.onnx'}` | {', '.join(sorted(names))} |")
    lines += ["", "Refused by name:", "", "| operators | why |", "|---|---|"]
    for why in sorted(set(REASONS.values())):
        names = sorted(name for name, reason in REASONS.items() if reason == why)
        lines.append(f"| {', '.join(names)} | {why} |")
    return "\n".join(lines) + "\n\n"
