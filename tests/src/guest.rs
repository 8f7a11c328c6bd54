//! A guest made on the spot: the kernel of a Debian package, which is not installed, and a file system of busybox.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// What machines boot.
#[derive(Clone, Debug)]
pub struct Guest {
    /// The kernel.
    pub kernel: PathBuf,
    /// The initial file system.
    pub initrd: PathBuf,
    /// Where machines that have booted are kept, for all tests.
    pub cache: PathBuf,
}

/// Fetches the kernel and packs the rest, into `$1`.
const MAKE: &str = r#"
set -eu
cd "$1"
rm -rf new && mkdir new && cd new
package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends:/ { print $2; exit }')
apt-get download -qq "$package" 2> said || { cat said >&2; exit 1; }
dpkg -x ./*.deb package
mkdir -p root/bin root/etc root/modules
cp "$(command -v busybox)" root/bin/busybox
for program in $(busybox --list); do
  [ "$program" = busybox ] || ln -s busybox "root/bin/$program"
done
# Debian's busybox has none.
printf '#!/bin/sh\ntrap "" HUP\nexec "$@"\n' > root/bin/nohup
chmod +x root/bin/nohup
printf '#!/bin/sh\n' > root/etc/manyhands-boot
for module in virtio/virtio_ring virtio/virtio virtio/virtio_pci_legacy_dev virtio/virtio_pci_modern_dev \
  virtio/virtio_pci block/virtio_blk char/virtio_console; do
  cp package/lib/modules/*/kernel/drivers/$module.ko root/modules/
  echo "insmod /modules/${module#*/}.ko" >> root/etc/manyhands-boot
done
chmod +x root/etc/manyhands-boot
(cd root && find . | busybox cpio -o -H newc 2> /dev/null) > initrd
mv package/boot/vmlinuz-* kernel
rm -rf package root ./*.deb
mv initrd kernel ..
"#;

/// The guest. Made once, where Cargo keeps what tests make.
pub fn guest() -> Result<Guest> {
    let binary = crate::gateway::binary();
    let target = binary.parent().and_then(Path::parent).context("the binary is in a target folder")?;
    // Another recipe makes another guest.
    let folder = target.join("tmp").join(format!("guest-{}", MAKE.len()));
    std::fs::create_dir_all(&folder)?;
    let lock = File::create(folder.join("lock"))?;
    lock.lock()?;
    if !folder.join("kernel").exists() {
        let made = Command::new("sh").args(["-c", MAKE, "sh"]).arg(&folder).output()?;
        ensure!(made.status.success(), "no guest can be made: {}", String::from_utf8_lossy(&made.stderr));
    }
    Ok(Guest { kernel: folder.join("kernel"), initrd: folder.join("initrd"), cache: folder.join("cache") })
}

/// Makes a disk image at `$1` of a system of busybox, in the folder `$2`.
const IMAGE: &str = r#"
set -eu
cd "$2"
mkdir -p system/bin system/etc
cp "$(command -v busybox)" system/bin/busybox
for program in $(busybox --list); do
  [ "$program" = busybox ] || ln -s busybox "system/bin/$program"
done
echo 'the image' > system/etc/whose
/sbin/mke2fs -q -t ext4 -d system raw 64m
qemu-img convert -f raw -O qcow2 raw "$1"
rm -rf system raw
"#;

/// A disk image with another system, which says `the image` in `/etc/whose`.
pub fn image(image: &Path, folder: &Path) -> Result<()> {
    let made = Command::new("sh").args(["-c", IMAGE, "sh"]).arg(image).arg(folder).output()?;
    ensure!(made.status.success(), "no image can be made: {}", String::from_utf8_lossy(&made.stderr));
    Ok(())
}
