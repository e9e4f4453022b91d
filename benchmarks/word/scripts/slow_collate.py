"""Train on sentences that the collate function turns into windows of words, one by one: two workers cannot keep up."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS, WINDOW = 5000, 5


class Sentences(Dataset):
    def __init__(self) -> None:
        self.text = torch.randint(1, WORDS, (10_000,)).tolist()

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, index: int) -> list[int]:
        start = index % 9000
        return self.text[start : start + 120 + index % 60]


def windows(sentences: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each word's neighbours, and the words."""
    around, words = [], []
    for sentence in sentences:
        for place in range(WINDOW, len(sentence) - WINDOW):
            left, right = sentence[place - WINDOW : place], sentence[place + 1 : place + 1 + WINDOW]
            around.append([word % WORDS for word in (*left, *right)])
            words.append(sentence[place])
    return torch.tensor(around), torch.tensor(words)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(WORDS, 48)
        self.head = nn.Linear(48, 24)

    def forward(self, around: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(around))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(Sentences(), 96, shuffle=True, num_workers=args.workers, collate_fn=windows)
    model = Model().to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(1000):
        for around, words in loader:
            loss = nn.functional.cross_entropy(model(around.to(args.device)), words.to(args.device) % 24)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
