"""The page on the protocol is what the machines say."""

from __future__ import annotations

from delian.simulations.runs import protocol_doc


def test_the_page_is_current(checkout):
    page = (checkout / "docs" / "protocol.md").read_text()
    assert page == protocol_doc.page(), (
        "run: python -m delian.simulations.runs.protocol_doc docs/protocol.md"
    )


def test_a_diagram_shows_each_change_of_phase_once():
    lines = protocol_doc.diagram(protocol_doc.device.TABLE).splitlines()
    assert '    state "checking in" as checking_in' in lines
    assert "    idle --> checking_in: started, time to come back" in lines
    assert len(lines) == len(set(lines))
