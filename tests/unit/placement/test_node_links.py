"""What a link is said to be, and what probes say of one."""

from __future__ import annotations

import pytest
from delian.core.common.errors import DelianError
from delian.core.placement.cut.link_model import (
    LinkProfile,
    Probe,
    bits,
    estimate,
    parse_bandwidth,
    parse_seconds,
)


def test_a_link_is_read_as_people_write_it():
    assert LinkProfile.parse("5.85Mbit/s,20ms") == LinkProfile(731_250.0, 731_250.0, 0.02)
    assert LinkProfile.parse("1Mbit/s/8Mbit/s, 5 ms") == LinkProfile(125e3, 1e6, 0.005)
    assert LinkProfile.parse("200kB/s") == LinkProfile(200e3, 200e3, 0.0)
    assert LinkProfile.parse("1Gbit/s,500us,2%").loss == 0.02
    assert parse_bandwidth("1.1Mbit/s") == pytest.approx(137_500)
    assert parse_seconds("0.5s") == 0.5
    assert bits(731_250) == "5.85 Mbit/s"


def test_a_link_written_out_is_read_again():
    link = LinkProfile(731_250.0, 2e6, 0.0123, 0.25)
    again = LinkProfile.parse(link.text())
    assert again.up == pytest.approx(link.up) and again.down == pytest.approx(link.down)
    assert (again.latency_s, again.loss) == pytest.approx((0.0123, 0.25))
    assert LinkProfile.of(link.body()) == link


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fast",
        "5Mbit",
        "5Mbit/s,20",
        "0Mbit/s,1ms",
        "1.2.3Mbit/s",
        "1Mbit/s,1ms,200%",
        "1MB/s,9e9s",
    ],
)
def test_what_is_no_link_is_refused_with_an_example(text):
    with pytest.raises(DelianError) as refused:
        LinkProfile.parse(text)
    assert refused.value.hint


def test_a_profile_that_lacks_something_is_refused():
    with pytest.raises(DelianError, match="incomplete"):
        LinkProfile.of({"up": 1.0, "down": 1.0})


def test_probes_tell_the_link_that_they_went_over():
    up, down, rtt = 1e6, 4e6, 0.04
    probes = [Probe(0, 0, rtt + 0.001 * k) for k in range(5)]
    probes += [
        Probe(64 << 10, 0, rtt + (64 << 10) / up),
        Probe(256 << 10, 0, rtt + (256 << 10) / up),
    ]
    probes += [Probe(0, 256 << 10, rtt + (256 << 10) / down), Probe(0, 0, None)]
    found = estimate(probes)
    assert (found.up, found.down) == pytest.approx((up, down))
    assert found.latency_s == rtt / 2
    assert found.loss == pytest.approx(1 / 9)


def test_down_is_as_up_until_it_was_measured_and_no_transfer_is_infinitely_fast():
    found = estimate([Probe(0, 0, 0.01), Probe(8192, 0, 0.01)])
    assert found.up == found.down == pytest.approx(8192 / 0.001)


def test_a_link_that_answers_nothing_is_told():
    with pytest.raises(DelianError, match="no probe"):
        estimate([Probe(0, 0, None)])
    with pytest.raises(DelianError, match="no sized probe"):
        estimate([Probe(0, 0, 0.01), Probe(8192, 0, None)])
