"""Ratings with the columns and sizes of MovieLens-1M, drawn from a known model.

python examples/make_movielens_like.py ratings        # train-*.parquet and test.parquet
python examples/make_movielens_like.py ratings 50000  # a smaller one

There are 6,040 users, 3,706 movies and 1,000,209 ratings; the last tenth in time is the test. Who
likes what is decided by biases and by how a user's group and occupation go with a movie's genres.
A linear model sees the biases only. The best AUC that any model can reach is printed.
"""

import itertools
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

NUM_USERS = 6040
NUM_MOVIES = 3706
NUM_RATINGS = 1_000_209
BEGIN_S = 956_703_932  # of the ratings in MovieLens-1M: April 2000
END_S = 1_046_454_590  # February 2003
AGES = [1, 18, 25, 35, 45, 50, 56]
NUM_OCCUPATIONS = 21
GENRES = [
    "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama",
    "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller",
    "War", "Western",
]  # fmt: skip
DIRECTIONS = 4  # in which tastes and styles differ
HISTORY = 5  # movies that a user liked before
TRAIN_FILES = 4


def make(num_ratings: int, seed: int = 1) -> tuple[pa.Table, NDArray[np.float64]]:
    """Ratings in the order of time, and the chance of each that the user likes the movie."""
    rng = np.random.default_rng(seed)
    age = rng.choice(len(AGES), NUM_USERS, p=[0.04, 0.18, 0.35, 0.20, 0.09, 0.08, 0.06])
    gender = rng.choice(2, NUM_USERS, p=[0.28, 0.72])
    occupation = rng.integers(NUM_OCCUPATIONS, size=NUM_USERS)
    zip_code = rng.integers(3_439, size=NUM_USERS)
    has_genre = rng.random((NUM_MOVIES, len(GENRES))) < 0.09
    has_genre[np.arange(NUM_MOVIES), rng.integers(len(GENRES), size=NUM_MOVIES)] = True

    # What a group likes and what a genre offers, in a few directions; a person differs a little.
    group_taste = rng.normal(0, 1.0, (2, len(AGES), DIRECTIONS))
    occupation_taste = rng.normal(0, 0.6, (NUM_OCCUPATIONS, DIRECTIONS))
    own_taste = rng.normal(0, 0.05, (NUM_USERS, DIRECTIONS))
    taste = group_taste[gender, age] + occupation_taste[occupation] + own_taste
    genre_style = rng.normal(0, 0.9, (len(GENRES), DIRECTIONS))
    num_genres = has_genre.sum(axis=1, keepdims=True)
    style = has_genre @ genre_style / num_genres
    user_bias = rng.normal(0, 0.25, NUM_USERS)
    movie_bias = rng.normal(0, 0.5, NUM_MOVIES)

    user = rng.choice(NUM_USERS, num_ratings, p=_popularity(rng, NUM_USERS, 0.8))
    movie = rng.choice(NUM_MOVIES, num_ratings, p=_popularity(rng, NUM_MOVIES, 0.9))
    timestamp = np.sort(rng.integers(BEGIN_S, END_S, num_ratings))
    logit = 0.3 + user_bias[user] + movie_bias[movie] + (taste[user] * style[movie]).sum(axis=1)
    probability = 1 / (1 + np.exp(-logit))
    is_liked = rng.random(num_ratings) < probability
    high = 4 + (rng.random(num_ratings) < 0.4)
    low = 3 - (rng.random(num_ratings) < 0.4)
    low -= rng.random(num_ratings) < 0.2

    genres = [[name for name, has in zip(GENRES, row, strict=True) if has] for row in has_genre]
    table = pa.table(
        {
            "user_id": pa.array(user + 1, pa.int32()),
            "movie_id": pa.array(movie + 1, pa.int32()),
            "rating": pa.array(np.where(is_liked, high, low), pa.int8()),
            "timestamp": pa.array(timestamp, pa.int64()),
            "gender": pa.array(np.array(["F", "M"])[gender[user]]),
            "age": pa.array(np.array(AGES, np.int32)[age[user]]),
            "occupation": pa.array(occupation[user], pa.int32()),
            "zip_code": pa.array([f"{10_000 + 7 * number}" for number in zip_code[user]]),
            "genres": pa.array([genres[number] for number in movie]),
            "history": _histories(user, movie, is_liked),
        }
    )
    return table, probability


def _popularity(rng: np.random.Generator, count: int, exponent: float) -> NDArray[np.float64]:
    """Few are frequent, many are rare, in random order."""
    weights = (np.arange(count) + 20.0) ** -exponent
    return rng.permutation(weights / weights.sum())


def _histories(
    user: NDArray[np.int64], movie: NDArray[np.int64], is_liked: NDArray[np.bool_]
) -> pa.Array:
    """For each rating the movies that the user liked last, before it."""
    seen: dict[int, list[int]] = {}
    histories = []
    for one, other, liked in zip(user.tolist(), movie.tolist(), is_liked.tolist(), strict=True):
        last = seen.setdefault(one, [])
        histories.append(last[-HISTORY:])
        if liked:
            last.append(other + 1)

    return pa.array(histories, pa.list_(pa.int32()))


def auc(labels: NDArray[np.bool_], scores: NDArray[np.float64]) -> float:
    """The chance that a liked one has a higher score than one that is not."""
    ranks = scores.argsort().argsort() + 1
    liked = labels.sum()
    above = ranks[labels].sum() - liked * (liked + 1) / 2
    return float(above / (liked * (labels.size - liked)))


def main(folder: str = "ratings", num_ratings: str = str(NUM_RATINGS)) -> None:
    table, probability = make(int(num_ratings))
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    num_train = table.num_rows * 9 // 10
    bounds = np.linspace(0, num_train, TRAIN_FILES + 1).astype(int)
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        part = table.slice(start, stop - start)
        pq.write_table(part, path / f"train-{number}.parquet", row_group_size=50_000)

    test = table.slice(num_train)
    pq.write_table(test, path / "test.parquet", row_group_size=50_000)
    is_liked = test.column("rating").to_numpy() >= 4
    print(f"{num_train:,} ratings to train and {test.num_rows:,} to test in {folder}")
    print(
        f"best reachable AUC of rating>=4 in the test: {auc(is_liked, probability[num_train:]):.4f}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
