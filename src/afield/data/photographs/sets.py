"""The data sets: what each is, where to get it, in what files it comes, and how many images it has."""

from afield.data.photographs.lists import Lists
from afield.data.photographs.published import ALL, PublishedSet
from afield.data.photographs.trees import Tree

_DASSL = "Dassl's DATASETS.md (https://github.com/KaiyangZhou/Dassl.pytorch)"

PACS = PublishedSet(
    "pacs", "PACS", folders=("pacs", "PACS"),
    layout="DOMAIN/CLASS/*.jpg (or that in images/, kfold/ or pacs_data/), and lists/DOMAIN_train.txt and "
    "DOMAIN_val.txt or splits/ or pacs_label/ with DOMAIN_train_kfold.txt and DOMAIN_crossval_kfold.txt",
    page="https://dali-dl.github.io/project_iccv2017.html (Li et al., ICCV 2017), which has both, or PACS in "
    f"{_DASSL}; DomainBed's download lacks the lists",
    arrangement=Lists(
        {
            "train": ("{domain}_train.txt", "{domain}_train_kfold.txt"),
            "validation": ("{domain}_val.txt", "{domain}_crossval_kfold.txt"),
        },
        folders=("lists", "splits", "pacs_label", "."),
        images=(".", "images", "kfold", "pacs_data", "pacs_data/pacs_data"),
    ),
    classes=7, preset="pacs", tested_whole=True, side=227,
    counts={
        "art_painting": {"train": 1840, "validation": 208},
        "cartoon": {"train": 2107, "validation": 237},
        "photo": {"train": 1499, "validation": 171},
        "sketch": {"train": 3531, "validation": 398},
    },
    digests={
        "art_painting": "952f303fb27b1414d040e6f5b6a0afd8dc6b5800db17be57ac3ed63e8d4a3f29",
        "cartoon": "7911c14f8fee0d30073bd3c62b2094d6ee7e377a0551ec507ecec6a59b3d8679",
        "photo": "43c52a259fe8ae480097379ef54b72e1c998de59a68380758cab96dd06b708bf",
        "sketch": "e279f152a5f83e6b13397946d877d6987e155f6e500ec24224dc8884089b462c",
    },
)  # fmt: skip

_OFFICE_HOME_COUNTS = {
    "art": {ALL: 2427}, "clipart": {ALL: 4365}, "product": {ALL: 4439}, "real_world": {ALL: 4357},
}  # fmt: skip

OFFICE_HOME = PublishedSet(
    "office-home", "Office-Home as Dassl divides it", folders=("office_home_dg",),
    layout="DOMAIN/train/CLASS/*.jpg and DOMAIN/val/CLASS/*.jpg, with the domains art, clipart, product and real_world",
    page=f"Office-Home-DG in {_DASSL}",
    arrangement=Tree(splits={"train": "train", "val": "validation"}),
    classes=65, preset="office-home", tested_whole=True, counts=_OFFICE_HOME_COUNTS,
)  # fmt: skip

OFFICE_HOME_ORIGINAL = PublishedSet(
    "office-home-original", "Office-Home", folders=("office_home", "OfficeHomeDataset_10072016", "OfficeHome"),
    layout="DOMAIN/CLASS/*.jpg, with the domains Art, Clipart, Product and Real World",
    page="https://www.hemanthdv.org/officeHomeDataset.html (Venkateswara et al., CVPR 2017)",
    arrangement=Tree(), classes=65, preset="office-home", tested_whole=True, counts=_OFFICE_HOME_COUNTS,
)  # fmt: skip

_TRAIN_AND_TEST = {"train": ("{domain}_train.txt",), "test": ("{domain}_test.txt",)}
_DOMAINNET_PAGE = "http://ai.bu.edu/M3SDA (the cleaned version; Peng et al., ICCV 2019)"

DOMAINNET = PublishedSet(
    "domainnet", "DomainNet", folders=("domainnet", "DomainNet", "domain_net"),
    layout="DOMAIN/CLASS/*.jpg, and splits/DOMAIN_train.txt and DOMAIN_test.txt", page=_DOMAINNET_PAGE,
    arrangement=Lists(_TRAIN_AND_TEST, folders=("splits", ".")), classes=345, preset="domainnet",
    counts={
        "clipart": {"train": 33_525, "test": 14_604},
        "infograph": {"train": 36_023, "test": 15_582},
        "painting": {"train": 50_416, "test": 21_850},
        "quickdraw": {"train": 120_750, "test": 51_750},
        "real": {"train": 120_906, "test": 52_041},
        "sketch": {"train": 48_212, "test": 20_916},
    },
)  # fmt: skip

# Five images of each class to test on; 140,006 in all (Zhou et al., Domain Adaptive Ensemble Learning).
MINI_DOMAINNET = PublishedSet(
    "mini-domainnet", "mini-DomainNet", folders=("domainnet", "DomainNet", "domain_net"),
    layout="DomainNet's DOMAIN/CLASS/*.jpg, and splits_mini/DOMAIN_train.txt and DOMAIN_test.txt",
    page=f"{_DOMAINNET_PAGE} for the images, and miniDomainNet in {_DASSL} for the lists",
    arrangement=Lists(_TRAIN_AND_TEST, folders=("splits_mini",)), classes=126, preset="mini-domainnet",
    counts={
        "clipart": {"test": 630}, "painting": {"test": 630}, "real": {"test": 630}, "sketch": {"test": 630},
        ALL: {ALL: 140_006},
    },
)  # fmt: skip

OFFICE_31 = PublishedSet(
    "office-31", "Office-31", folders=("office31", "office_31", "Office-31", "office"),
    layout="DOMAIN/CLASS/*.jpg or DOMAIN/images/CLASS/*.jpg, with the domains amazon, dslr and webcam",
    page="https://people.eecs.berkeley.edu/~jhoffman/domainadapt (Saenko et al., ECCV 2010)",
    arrangement=Tree(), classes=31, preset="office-31", tested_whole=True,
    counts={"amazon": {ALL: 2817}, "dslr": {ALL: 498}, "webcam": {ALL: 795}},
)  # fmt: skip

VLCS = PublishedSet(
    "vlcs", "VLCS", folders=("VLCS", "vlcs"),
    layout="DOMAIN/train/CLASS/*.jpg, and the same in DOMAIN/crossval and DOMAIN/test, with the domains CALTECH, "
    "LABELME, PASCAL and SUN and the classes 0 to 4",
    page=f"VLCS in {_DASSL}; what DomainBed downloads is read as vlcs-original",
    arrangement=Tree(
        splits={"train": "train", "crossval": "validation", "test": "test"},
        classes={"0": "bird", "1": "car", "2": "chair", "3": "dog", "4": "person"},
    ),
    classes=5, preset="vlcs",
    counts={
        "caltech": {ALL: 1415, "test": 424}, "labelme": {ALL: 2656, "test": 797},
        "pascal": {ALL: 3376, "test": 1013}, "sun": {ALL: 3282, "test": 985},
    },
)  # fmt: skip

VLCS_ORIGINAL = PublishedSet(
    "vlcs-original", "VLCS as DomainBed has it", folders=("VLCS", "vlcs"),
    layout="DOMAIN/CLASS/*.jpg, with the domains Caltech101, LabelMe, SUN09 and VOC2007 and the classes bird, car, "
    "chair, dog and person",
    page="the script download.py of DomainBed (https://github.com/facebookresearch/DomainBed)",
    arrangement=Tree(domains={"caltech101": "caltech", "voc2007": "pascal", "sun09": "sun"}),
    classes=5, preset="vlcs", tested_whole=True,
    counts={"caltech": {ALL: 1415}, "labelme": {ALL: 2656}, "pascal": {ALL: 3376}, "sun": {ALL: 3282}},
)  # fmt: skip

_ALL_SETS = (PACS, OFFICE_HOME, OFFICE_HOME_ORIGINAL, DOMAINNET, MINI_DOMAINNET, OFFICE_31, VLCS, VLCS_ORIGINAL)
SETS = {published.name: published for published in _ALL_SETS}
"""By name."""
