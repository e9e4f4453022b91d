import torch, time, sys
from torch.utils.data import Dataset, DataLoader
class D(Dataset):
    def __len__(self): return 100000
    def __getitem__(self, i): return torch.rand(3,64,64), i % 10
def main():
    m = torch.nn.Sequential(torch.nn.Conv2d(3,256,3), torch.nn.ReLU(), torch.nn.Conv2d(256,256,3), torch.nn.ReLU(), torch.nn.Conv2d(256,64,3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10)).cuda()
    o = torch.optim.SGD(m.parameters(), 0.01)
    for x, y in DataLoader(D(), 256, num_workers=6, shuffle=True, pin_memory=True):
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        o.zero_grad(); l = torch.nn.functional.cross_entropy(m(x), y); l.backward(); o.step(); l.item()
if __name__ == "__main__": main()
