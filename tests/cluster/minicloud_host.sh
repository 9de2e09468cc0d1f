# Boots one host of the test cloud; runs as root in namespaces of its own. Sourced by both kinds of host.
#
# LAB_ID, LAB_IP, LAB_N: name, address, number. LAB_VENV: the virtual environment. LAB_KEEP: folders that stay visible.
# /mnt/lab: the cloud's folder (hosts/<id>: a host's disk, shared: what the laptop leaves, keys: ssh keys).

home=~root
temporary=$(dirname "$(mktemp -u)")

private_disk() { # $1: where this host's own home and temporary folder lie
  mkdir -p "$1$home" "$1$temporary"
  chmod 1777 "$1$temporary"
  chmod 700 "$1$home"
  for kept in $LAB_KEEP; do # the virtual environment and its Python, read-only
    case "$kept" in "$temporary"/* | "$home"/*)
      mkdir -p "$1$kept"
      mount --bind "$kept" "$1$kept"
      mount -o remount,bind,ro "$1$kept"
      ;;
    esac
  done
  # Without names `ray start` waits 20 s for DNS.
  echo "127.0.0.1 localhost $(hostname)" >"$1/hosts"
  : >"$1/resolv.conf"
  mount --bind "$1/hosts" /etc/hosts
  mount --bind "$1/resolv.conf" "$(realpath /etc/resolv.conf)"
  mount --rbind "$1$home" "$home"
  mount -t tmpfs -o size=512m tmpfs /dev/shm
  mount -t tmpfs -o size=16m tmpfs /run
  mkdir -p /run/sshd
  echo "export PATH=$LAB_VENV/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" >"$home/.bashrc"
  echo '. ~/.bashrc' >"$home/.bash_profile"
  mount --rbind "$1$temporary" "$temporary" # last: it hides the real one
}

instance() {
  set -e
  hostname "$LAB_ID"
  ip link set lo up
  for _ in $(seq 100); do
    ip link show "p$LAB_N" >/dev/null 2>&1 && break
    sleep 0.05
  done
  ip link set "p$LAB_N" name eth0
  ip addr add "$LAB_IP/24" dev eth0
  ip link set eth0 up
  ip route add default via "$LAB_LAPTOP" # Ray finds its own address by a connect() to 8.8.8.8
  # The security group: from outside, the laptop, ssh only; among instances everything.
  iptables -A INPUT -i eth0 -s "$LAB_LAPTOP" -p tcp --syn ! --dport 22 -j REJECT --reject-with tcp-reset
  disk=/mnt/lab/hosts/$LAB_ID
  mkdir -p "$disk$home/.ssh"
  cp /mnt/lab/keys/id.pub "$disk$home/.ssh/authorized_keys"
  chmod 700 "$disk$home/.ssh"
  private_disk "$disk"
  (umask 077 && cat /mnt/lab/keys/host >/run/hostkey)
  printf '%s\n' "Port 22" "ListenAddress $LAB_IP" "HostKey /run/hostkey" "AuthorizedKeysFile .ssh/authorized_keys" \
    "PermitRootLogin prohibit-password" "PasswordAuthentication no" "UsePAM no" "PidFile none" \
    "MaxStartups 100" "MaxSessions 100" "Subsystem sftp internal-sftp" "PrintMotd no" >/run/sshd_config
  exec /usr/sbin/sshd -D -e -f /run/sshd_config
}

laptop() { # "$@": what its user types
  set -e
  mkdir -p "/mnt/lab/laptop$temporary/shared"
  mount --bind /mnt/lab/shared "/mnt/lab/laptop$temporary/shared" # what the user leaves behind
  private_disk /mnt/lab/laptop
  mkdir -p "$home/.ssh"
  (umask 077 && cat /mnt/lab/keys/id >"$home/.ssh/id")
  umount -l /mnt/lab # the user sees no machine room
  . "$home/.bashrc"
  export HOME=$home
  cd "$temporary/shared"
  exec "$@"
}
