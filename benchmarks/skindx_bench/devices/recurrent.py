"""Deep Speech 2 and a two-layer LSTM, with their counted operations."""

import torch
from torch import Tensor, nn

LETTERS = 29
"""Characters of English with space, apostrophe and the blank of CTC."""


class TwoLayerLstm(nn.Module):
    """Two layers of LSTM over a sequence, and a class from the last step. Input: B x T x width."""

    def __init__(self, width: int, classes: int = 10) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, sequence: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(sequence)[0][:, -1])
        return out


def lstm_flops(width: int, steps: int, classes: int = 10) -> float:
    """Return operations of one sequence's forward pass."""
    return 2 * steps * recurrent_flops(4, width, width) + 2.0 * width * classes


def recurrent_flops(gates: int, inputs: int, width: int) -> float:
    """Return operations of one step of one layer: products with the input and with the state."""
    return 2.0 * gates * width * (inputs + width)


class DeepSpeech2(nn.Module):
    """Deep Speech 2 (Amodei et al. 2015, arXiv 1512.02595). Input: B x 1 x F x T.

    Two convolutions over a spectrogram, five bidirectional layers of GRU, one fully connected one.
    """

    def __init__(self, width: int, bands: int = 161, layers: int = 5) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), stride=(2, 2), padding=(20, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), stride=(2, 1), padding=(10, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
        )
        self.features = 32 * _half(_half(bands))
        self.recurrent = nn.GRU(
            self.features, width, num_layers=layers, bidirectional=True, batch_first=True
        )
        self.head = nn.Linear(2 * width, LETTERS)

    def forward(self, spectrogram: Tensor) -> Tensor:
        maps = self.convolutions(spectrogram)
        sequence = maps.flatten(1, 2).transpose(1, 2)
        out: Tensor = self.head(self.recurrent(sequence)[0])
        return out


def deep_speech_flops(width: int, frames: int, bands: int = 161, layers: int = 5) -> float:
    """Return operations of one utterance's forward pass."""
    half, quarter = _half(bands), _half(_half(bands))
    steps = _half(frames)
    first = 2.0 * 32 * half * steps * 41 * 11
    second = 2.0 * 32 * quarter * steps * 32 * 21 * 11
    features = 32 * quarter
    inputs = [features] + [2 * width] * (layers - 1)
    recurrent = sum(2 * recurrent_flops(3, count, width) for count in inputs)
    return first + second + steps * (recurrent + 2.0 * 2 * width * LETTERS)


def ctc_loss(logits: Tensor) -> Tensor:
    """Return the CTC loss against a tenth as many letters as steps. Input: B x T x letters."""
    batch, steps = logits.shape[:2]
    letters = max(1, steps // 10)
    targets = torch.ones(batch, letters, dtype=torch.long, device=logits.device)
    targets[:, ::2] = 2
    return nn.functional.ctc_loss(
        logits.float().log_softmax(-1).transpose(0, 1),
        targets,
        torch.full((batch,), steps, dtype=torch.long),
        torch.full((batch,), letters, dtype=torch.long),
    )


def _half(size: int) -> int:
    """Return what a stride of two leaves of `size` places."""
    return (size + 1) // 2
