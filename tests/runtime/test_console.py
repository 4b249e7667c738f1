"""How a signal ends a command that keeps what it has written."""

from __future__ import annotations

import signal

import pytest

from mtrain.runtime import console
from mtrain.runtime.console import stopped_by_signals


@pytest.mark.parametrize(
    ("number", "end", "code"),
    [
        (signal.SIGINT, KeyboardInterrupt, None),
        (signal.SIGTERM, SystemExit, 143),
        (signal.SIGHUP, SystemExit, 129),
    ],
)
def test_a_signal_ends_the_block_and_a_second_one_the_process(
    number: signal.Signals, end: type[BaseException], code: int | None
) -> None:
    second = []

    def raise_it() -> None:
        try:
            signal.raise_signal(number)
        finally:
            second.append(signal.getsignal(number))

    before = signal.signal(number, signal.SIG_DFL if code else signal.default_int_handler)
    try:
        default = signal.getsignal(number)
        with pytest.raises(end) as caught, stopped_by_signals():
            raise_it()
        assert second == [console._exit_now]
        assert getattr(caught.value, "code", None) == code
        assert signal.getsignal(number) is default
    finally:
        signal.signal(number, before)


def test_a_signal_that_is_ignored_or_handled_stays_so() -> None:
    """As SIGHUP under nohup, or SIGTERM in a job that handles it."""

    def handle(*_: object) -> None:
        pass

    handlers = {signal.SIGHUP: signal.SIG_IGN, signal.SIGTERM: handle}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        with stopped_by_signals():
            inside = {number: signal.getsignal(number) for number in handlers}
        after = {number: signal.getsignal(number) for number in handlers}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert inside == after == handlers
