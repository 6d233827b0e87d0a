# Seg-S with MiTA on ADE20K, crops of 512, for mmsegmentation; Table 4, as experiment=ade20k_s_mita.
# Reported: 44.5 % mIoU. Run from the root of this project, with mmseg's own tools:
#   TOOLS=$(python -c "import importlib.util as u; print(u.find_spec('mmseg').submodule_search_locations[0])")/.mim/tools
#   PYTHONPATH=. python $TOOLS/train.py configs/mmseg/ade20k_s_mita.py
#   PYTHONPATH=. python $TOOLS/test.py configs/mmseg/ade20k_s_mita.py work_dirs/ade20k_s_mita/iter_160000.pth --tta
# torch from 2.6 on reads mmengine's checkpoints, to test or to resume, only with TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1; set it for
# files that you made. --tta is the multi-scale evaluation; mmseg's does not enlarge images smaller than the window.
custom_imports = dict(imports=["models.segmentation.mmseg"], allow_failed_imports=False)  # MiTABackbone, MiTACBTHead
default_scope = "mmseg"

crop = (512, 512)
longest_shortest = (2048, 512)  # an image is resized to the largest size within both, in pixels
window = dict(mode="slide", crop_size=crop, stride=(480, 480))
steps = 160_000

model = dict(
    type="EncoderDecoder",
    data_preprocessor=dict(
        type="SegDataPreProcessor",
        mean=[127.5, 127.5, 127.5],
        std=[127.5, 127.5, 127.5],
        bgr_to_rgb=True,
        size=crop,
        pad_val=0,
        seg_pad_val=255,
    ),
    backbone=dict(
        type="MiTABackbone",
        attention=dict(name="mita", num_landmarks=49, top_k=49),  # mita_released for the authors' own code
        input_size=(3, *crop),
        patch_size=16,
        embed_dim=384,
        depth=12,
        num_heads=6,
        drop_path=0.1,
        # a model of timm, which is downloaded, a file, or a run folder of this project; init_cfg=None for random weights
        init_cfg=dict(type="Pretrained", checkpoint="vit_small_patch16_384.augreg_in21k_ft_in1k"),
    ),
    decode_head=dict(
        type="MiTACBTHead",
        in_channels=384,
        num_classes=150,
        patch_size=16,
        depth=3,
        num_heads=3,
        head_dim=100,
        representatives=(10, 10),
        loss_decode=dict(type="CrossEntropyLoss", avg_non_ignore=True),
    ),
    train_cfg=dict(),
    test_cfg=window,
)
tta_model = dict(type="SegTTAModel")

train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations"),
    dict(type="RandomResize", scale=longest_shortest, ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type="RandomCrop", crop_size=crop, cat_max_ratio=0.75),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PhotoMetricDistortion"),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=longest_shortest, keep_ratio=True),
    dict(type="LoadAnnotations"),  # of the photograph's own size
    dict(type="PackSegInputs"),
]
tta_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(
        type="TestTimeAug",
        transforms=[
            [
                dict(type="Resize", scale=(int(2048 * scale), int(512 * scale)), keep_ratio=True)
                for scale in (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
            ],
            [dict(type="RandomFlip", prob=prob, direction="horizontal") for prob in (0.0, 1.0)],
            [dict(type="LoadAnnotations")],
            [dict(type="PackSegInputs")],
        ],
    ),
]

data_root = "data/ADEChallengeData2016"
train_dataloader = dict(
    batch_size=8,  # on one GPU; 1 on each of eight
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type="ADE20KDataset",
        data_root=data_root,
        data_prefix=dict(img_path="images/training", seg_map_path="annotations/training"),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type="ADE20KDataset",
        data_root=data_root,
        data_prefix=dict(img_path="images/validation", seg_map_path="annotations/validation"),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="IoUMetric", iou_metrics=["mIoU"])
test_evaluator = val_evaluator

optim_wrapper = dict(
    type="OptimWrapper", optimizer=dict(type="SGD", lr=1e-3, momentum=0.9, nesterov=True, weight_decay=0.0)
)
param_scheduler = [dict(type="PolyLR", power=0.9, eta_min=1e-5, begin=0, end=steps, by_epoch=False)]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=steps, val_interval=16_000)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")

default_hooks = dict(
    timer=dict(type="IterTimerHook"),
    logger=dict(type="LoggerHook", interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type="ParamSchedulerHook"),
    checkpoint=dict(type="CheckpointHook", by_epoch=False, interval=16_000, max_keep_ckpts=2),
    sampler_seed=dict(type="DistSamplerSeedHook"),
)
log_processor = dict(by_epoch=False)
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method="fork", opencv_num_threads=0),
    dist_cfg=dict(backend="nccl"),
)
