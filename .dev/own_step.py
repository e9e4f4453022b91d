import torch
from torch.utils.data import Dataset, DataLoader
torch.set_num_threads(1)
class D(Dataset):
    def __len__(self): return 100000
    def __getitem__(self, i): return torch.rand(64), i % 10
def main():
    m = torch.nn.Sequential(torch.nn.Linear(64, 1500), torch.nn.ReLU(), torch.nn.Linear(1500, 1500), torch.nn.ReLU(), torch.nn.Linear(1500, 10))
    o = torch.optim.SGD(m.parameters(), 0.01)
    for x, y in DataLoader(D(), 64, num_workers=2, shuffle=True):
        o.zero_grad(); torch.nn.functional.cross_entropy(m(x), y).backward(); o.step()
if __name__ == "__main__": main()
