"""Pieces of the input to and from messages."""

from megalith.protos import coordination_pb2
from megalith.wire.pieces import (
    FoundFile,
    Piece,
    PieceAnswer,
    PiecePlan,
    PieceProgress,
    PieceRequest,
)


def progress_to_proto(progress: PieceProgress) -> coordination_pb2.PieceProgress:
    return coordination_pb2.PieceProgress(
        number=progress.number, offset=progress.offset, is_done=progress.is_done
    )


def progress_from_proto(message: coordination_pb2.PieceProgress) -> PieceProgress:
    return PieceProgress(message.number, message.offset, message.is_done)


def request_to_proto(request: PieceRequest) -> coordination_pb2.TakePiecesRequest:
    found = [coordination_pb2.FoundFile(path=file.path, hour=file.hour) for file in request.found]
    return coordination_pb2.TakePiecesRequest(
        index=request.index,
        incarnation=request.incarnation,
        of=request.plan.of,
        total=request.plan.total,
        is_followed=request.plan.is_followed,
        progress=[progress_to_proto(each) for each in request.progress],
        most=request.most,
        found=found,
        is_idle=request.is_idle,
    )


def request_from_proto(message: coordination_pb2.TakePiecesRequest) -> PieceRequest:
    plan = PiecePlan(message.of, message.total, message.is_followed)
    progress = [progress_from_proto(each) for each in message.progress]
    found = [FoundFile(file.path, file.hour) for file in message.found]

    return PieceRequest(
        index=message.index,
        incarnation=message.incarnation,
        plan=plan,
        progress=tuple(progress),
        most=message.most,
        found=tuple(found),
        is_idle=message.is_idle,
    )


def answer_to_proto(answer: PieceAnswer) -> coordination_pb2.TakePiecesResponse:
    pieces = []
    for piece in answer.pieces:
        message = coordination_pb2.Piece(number=piece.number, offset=piece.offset, name=piece.name)
        pieces.append(message)

    return coordination_pb2.TakePiecesResponse(
        pieces=pieces,
        held=sorted(answer.held),
        is_end=answer.is_end,
        closed_hour=answer.closed_hour,
        known_files=answer.known_files,
        late_files=answer.late_files,
    )


def answer_from_proto(message: coordination_pb2.TakePiecesResponse) -> PieceAnswer:
    pieces = [Piece(piece.number, piece.offset, piece.name) for piece in message.pieces]
    return PieceAnswer(
        pieces=tuple(pieces),
        held=frozenset(message.held),
        is_end=message.is_end,
        closed_hour=message.closed_hour,
        known_files=message.known_files,
        late_files=tuple(message.late_files),
    )
