"""Requests for pieces and their answers arrive as they were sent."""

import pytest

from megalith.wire import piece_codec
from megalith.wire.pieces import (
    FoundFile,
    Piece,
    PieceAnswer,
    PiecePlan,
    PieceProgress,
    PieceRequest,
)

REQUEST = PieceRequest(
    1,
    "incarnation",
    PiecePlan("blocks", 12),
    (PieceProgress(3, 4), PieceProgress(5, 6, is_done=True)),
    7,
    (FoundFile("a.parquet", 8),),
    is_idle=True,
)
FOLLOWED = PieceRequest(0, "other", PiecePlan("files", is_followed=True))
ANSWER = PieceAnswer(
    (Piece(3, 4, "a.parquet"), Piece(5)), frozenset({3, 5, 9}), True, 17, 8, ("b",)
)


@pytest.mark.parametrize("request_", [REQUEST, FOLLOWED])
def test_a_request_arrives_as_it_was_sent(request_):
    message = piece_codec.request_to_proto(request_)
    assert piece_codec.request_from_proto(message) == request_


@pytest.mark.parametrize("answer", [ANSWER, PieceAnswer()])
def test_an_answer_arrives_as_it_was_sent(answer):
    message = piece_codec.answer_to_proto(answer)
    assert piece_codec.answer_from_proto(message) == answer
